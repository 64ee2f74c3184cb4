import torch

ops = torch.ops._attention_tpu_296bd0d


def add_op_namespace_prefix(op_name: str) -> str:
    return f"_attention_tpu_296bd0d::{op_name}"
