"""torch.distributed for the ranks of a tensor-parallel model: joining the group, and three operations.

The group is the one that torchrun's environment describes (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT).
"""

import os
import sys
from datetime import timedelta


def join(tpu, seconds):
    """Joins the group and returns this process's rank and the number of ranks."""
    if not tpu:
        # torch's device plug-ins take seconds, and hang when a TPU's runtime is touched without a TPU.
        os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    if not getattr(sys, "argv", None):
        sys.argv = [""]
    import torch
    import torch.distributed as distributed

    if not distributed.is_initialized():
        # Small host tensors go between ranks in any case; device tensors only where there are devices.
        backend = "cpu:gloo,tpu:tpu_dist" if tpu else "gloo"
        distributed.init_process_group(backend, init_method="env://", timeout=timedelta(seconds=seconds))
    torch.set_grad_enabled(False)
    return distributed.get_rank(), distributed.get_world_size()


def all_reduce(tensor):
    """Replaces the tensor by the sum over all ranks."""
    import torch.distributed as distributed

    distributed.all_reduce(tensor)


def all_gather(tensor):
    """The tensors of all ranks, by rank."""
    import torch
    import torch.distributed as distributed

    parts = [torch.empty_like(tensor) for _ in range(distributed.get_world_size())]
    distributed.all_gather(parts, tensor)
    return parts


def broadcast(tensor):
    """Replaces the tensor by the first rank's."""
    import torch.distributed as distributed

    distributed.broadcast(tensor, src=0)


def leave():
    """Leaves the group. Every rank has done its last operation."""
    import torch.distributed as distributed

    if distributed.is_initialized():
        distributed.destroy_process_group()
