import torch

ops = torch.ops._rms_norm_cpu_65f8fda


def add_op_namespace_prefix(op_name: str) -> str:
    return f"_rms_norm_cpu_65f8fda::{op_name}"
