"""What PyTorch does on this thread, by names that are quick to look up: every call asks some of these."""
import torch

is_compiling = torch.compiler.is_compiling
in_dynamo = torch.compiler.is_dynamo_compiling   # which stops at builtins
in_transform = torch._C._are_functorch_transforms_active
grad_enabled = torch.is_grad_enabled
any_autocast = torch._C._is_any_autocast_enabled
BelowAutograd = torch._C._AutoDispatchBelowAutograd
