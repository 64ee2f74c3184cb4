import torch

ops = torch.ops._attention_cpu_296bd0d


def add_op_namespace_prefix(op_name: str) -> str:
    return f"_attention_cpu_296bd0d::{op_name}"
