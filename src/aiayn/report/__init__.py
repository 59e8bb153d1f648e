"""Results in outputs/ to tables, plots and pages."""
