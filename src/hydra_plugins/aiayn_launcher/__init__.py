"""The launcher of sweeps; Hydra finds it because this package lies in `hydra_plugins`."""
