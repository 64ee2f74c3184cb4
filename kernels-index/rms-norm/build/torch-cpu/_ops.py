import torch

ops = torch.ops._rms_norm_cpu_902ecda


def add_op_namespace_prefix(op_name: str) -> str:
    return f"_rms_norm_cpu_902ecda::{op_name}"
