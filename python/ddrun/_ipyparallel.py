"""ipp.Cluster(engines="ddrun"): the engines of ipyparallel as ranks of one job, engine i is rank i."""

from ipyparallel.cluster.launcher import MPIEngineSetLauncher
from traitlets import default

from ddrun import find_ddrun


class DdrunEngineSetLauncher(MPIEngineSetLauncher):
    @default("mpi_cmd")
    def _ddrun(self):
        # shutdown_atexit=False (ipcluster start --daemonize) leaves the engines running after the process that starts ddrun.
        return [find_ddrun(), "-q", *(["--end-with-parent"] if self.parent.shutdown_atexit else [])]

    @property
    def program(self):
        return self.engine_cmd

    @property
    def program_args(self):
        return super().program_args + ["--IPEngine.id=${rank}"]
