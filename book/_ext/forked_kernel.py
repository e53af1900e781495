"""Kernels that are forks of one process, which has imported what every chapter imports.

A kernel of its own imports torch, pandas and the book's functions again: four seconds of every notebook.
"""

from __future__ import annotations

import os
import signal
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from typing import Any

from jupyter_client import AsyncKernelManager

PROCESSES = get_context("forkserver")
PROCESSES.set_forkserver_preload(["ipykernel.kernelapp", "ncbook.training"])


def serve(arguments: list[str], environment: dict[str, str], folder: str) -> None:
    """Be the kernel that a command line asks for, until it is shut down."""
    os.setsid()
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    from ipykernel.kernelapp import IPKernelApp
    from matplotlib import rcParams

    # A kernel names its backend before matplotlib is imported, which has happened here.
    rcParams["backend"] = "module://matplotlib_inline.backend_inline"
    parent = f"--IPKernelApp.parent_handle={os.getppid()}"  # without it a kernel ends
    IPKernelApp.launch_instance(argv=[*arguments, parent])


class Fork:
    """A process of multiprocessing with what the manager of a kernel needs of :class:`subprocess.Popen`."""

    stdin = stdout = stderr = None

    def __init__(self, process: BaseProcess) -> None:
        self.process, self.pid = process, process.pid

    def poll(self) -> int | None:
        return self.process.exitcode

    def wait(self) -> int | None:
        self.process.join()
        return self.process.exitcode

    def send_signal(self, number: int) -> None:
        if self.poll() is None and self.pid:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class ForkedKernel(AsyncKernelManager):
    """Manager of one kernel that is a fork."""

    async def _async_interrupt_kernel(self) -> None:
        """Do nothing: a kernel that ends is asked to, and would report the interrupt before as an error."""

    async def _async_launch_kernel(self, kernel_cmd: list[str], **kw: Any) -> None:
        # python -m ipykernel_launcher -f connection.json ...
        given = kernel_cmd[kernel_cmd.index("-f") :], dict(kw["env"]), os.fspath(kw.get("cwd") or os.getcwd())
        process = PROCESSES.Process(target=serve, args=given)
        process.start()
        assert self.provisioner is not None
        self.provisioner.process = Fork(process)
