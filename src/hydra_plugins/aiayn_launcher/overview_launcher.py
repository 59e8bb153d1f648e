"""A Hydra launcher for tasks that look at a sweep as a whole: it launches nothing.

`task=plan sweep=table3` composes the very jobs that `sweep=table3` would run, and hands their configs to the task
together, in one call and in this process.
"""

from collections.abc import Sequence
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.utils import JobReturn, JobStatus, configure_log, setup_globals
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from hydra.utils import get_method
from omegaconf import DictConfig, open_dict

from hydra_plugins.aiayn_launcher.jobs import compose


class OverviewLauncher(Launcher):
    """Call the task once, with the configs of all jobs; what other launchers are set to is ignored."""

    def __init__(self, **of_other_launchers: Any) -> None:
        pass

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.hydra_context = hydra_context
        self.config = config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Call the task with the jobs' configs, whose `run_dir` are the jobs' folders.

        Raises:
            ValueError: if there is no job, or two jobs have the same folder.
        """
        setup_globals()
        with open_dict(self.config):
            self.config.hydra.runtime.output_dir = self.config.hydra.run.dir
        configure_log(self.config.hydra.job_logging, self.config.hydra.verbose)
        jobs = compose(self.hydra_context, self.config, job_overrides, initial_job_idx)
        for job in jobs:
            job.config.run_dir = str(job.folder)
        result = get_method(self.config.task)(*(job.config for job in jobs))
        return [JobReturn(job.overrides, status=JobStatus.COMPLETED, _return_value=result) for job in jobs]


ConfigStore.instance().store(
    group="hydra/launcher",
    name="overview",
    node={"_target_": f"{OverviewLauncher.__module__}.{OverviewLauncher.__name__}"},
    provider="aiayn",
)
