"""How a sub-layer joins the residual stream (sections 3.1 and 5.4)."""
