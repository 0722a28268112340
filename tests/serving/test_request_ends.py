"""A request ends exactly once, with its last token or with a reason."""

import numpy as np

from serving.request import Request, RequestSpec


def test_the_last_token_or_a_failure_is_one_ending() -> None:
    spec = RequestSpec(0, 0, np.arange(3), 3, 1, 2, False, 0)
    served, failed = Request(spec), Request(spec)
    served.append_output(7, 10)
    assert served.num_ends == 0 and not served.is_done
    served.append_output(8, 20)
    failed.fail("lost")
    assert served.num_ends == failed.num_ends == 1  # broken by counting an ending twice
    assert served.outputs == [7, 8] and served.token_times_ps == [10, 20] and failed.error == "lost"
