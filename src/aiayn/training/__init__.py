"""Section 5: loss and schedule as pure functions, and the LightningModule that wires them."""
