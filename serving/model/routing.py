"""Which experts a row goes to, by comparisons only: no rounding, hence nothing that a batch could change.

Of equal scores the lower index wins. numpy sorts short rows several times faster than torch's top-k.
Source: DeepSeek-V3 (2024), sections 2.1.2 and 3.4: sigmoid scores, a bias for the choice, limited groups.
"""

import numpy as np
import numpy.typing as npt
import torch

__all__ = ["choose_experts", "largest"]

Floats = npt.NDArray[np.float32]


def largest(values: Floats, k: int) -> npt.NDArray[np.bool_]:
    """Mark the k largest of each row of values [n, m], none of them NaN; of equals, the lowest index."""
    threshold = np.sort(values, axis=-1)[:, values.shape[1] - k, None]
    marked: npt.NDArray[np.bool_] = values >= threshold
    if (
        np.count_nonzero(marked) != len(values) * k
    ):  # each row has k at least, so some row has a tie at the edge
        best = np.argsort(-values, axis=-1, kind="stable")[:, :k]
        marked = np.zeros(values.shape, dtype=np.bool_)
        np.put_along_axis(marked, best, True, axis=-1)
    return marked


def choose_experts(choice: Floats, num_groups: int, topk_group: int, top_k: int) -> torch.Tensor:
    """The experts of each row.

    Args:
        choice: float32 [n, experts], scores with the correction bias, finite.
        num_groups: equal, consecutive groups of experts.
        topk_group: how many groups stay open, by the sum of their two largest scores.
        top_k: experts to choose from the open groups.

    Returns:
        int64 [n, top_k], ascending in each row.
    """
    n, experts = choice.shape
    if num_groups == topk_group:  # every group is open
        return torch.from_numpy((np.flatnonzero(largest(choice, top_k)) % experts).reshape(n, top_k))
    grouped = choice.reshape(n, num_groups, -1)
    ranked = np.sort(grouped, axis=-1)
    opened = largest(ranked[:, :, -1] + ranked[:, :, -2], topk_group)
    candidates = np.where(opened[:, :, None], grouped, np.float32(-np.inf)).reshape(n, experts)
    chosen = np.flatnonzero(largest(candidates, top_k)) % experts
    return torch.from_numpy(chosen.reshape(n, top_k))
