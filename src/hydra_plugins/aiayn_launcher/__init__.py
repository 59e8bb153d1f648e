"""The launchers of sweeps; Hydra finds them because this package lies in `hydra_plugins`."""

from contextlib import suppress

with suppress(ModuleNotFoundError):  # without the extra `slurm` there is no launcher=slurm
    from hydra_plugins.aiayn_launcher._slurm_launcher import SlurmLauncher as SlurmLauncher
