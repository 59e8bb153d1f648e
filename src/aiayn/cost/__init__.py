"""What a model costs: parameters, floating-point operations, memory."""
