"""`torch.distributed` on the emulated machine: the backend "superpod".

    import torch.distributed as dist
    dist.init_process_group("superpod")        # under `superpod run`, or any mpirun

Importing this package registers the backend; where the project is installed, `import torch` has done so
already (`superpod_torch`). The process group itself is loaded when one is made. Each call moves the tensors'
real bytes and is charged virtual time.
"""

from superpod_torch import register

register()

__all__ = ["register"]
