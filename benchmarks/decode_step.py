"""Wall time of a decode step of the whole pod.

    superpod run -n 384 benchmarks/decode_step.py --model DIR             4 sequences on every rank
    superpod run -n 384 benchmarks/decode_step.py --model DIR --lonely    one sequence in the whole pod

Mini preset, 8 executed layers, real routing and experts, 128 tokens of KV or more a sequence, priced as
DeepSeek-R1. A step runs from one status exchange of rank 0 to its next, sampling included. Prints the median.

A kernel that gathers free memory (kcompactd) moves pages under the ranks. All ranks map a page of the pod,
so moving one is slow: steps take up to twice as long while it lasts. `moved_pages` says how many pages were
moved during each step, and `step_s_median_unmoved` is the median of the steps without.
"""

import argparse
import json
import os
import resource
import time

import numpy as np

import emulator
from serving.ahead import common_parts
from serving.job import ReplayJob
from serving.limits import KV_BLOCK_TOKENS
from serving.rank_parts import build
from serving.request import RequestSpec

PROMPT = 128
STILL_PAGES = 1000  # fewer moved pages than these leave a step's time as it is (they take 20 to 80 us each)


class StepWatch:
    """Takes the place of the progress display: host time at the end of each step of this rank."""

    def __init__(self) -> None:
        self.walls: list[float] = []
        self.moved: list[int] = []
        self.usage: list[tuple[int, int, int, int]] = []
        """This process so far: user and system time in us, page faults, sleeps."""

    def update(self, rank: int, ended: int, now_ps: int) -> None:
        self.walls.append(time.perf_counter())
        used = resource.getrusage(resource.RUSAGE_SELF)
        times = round(used.ru_utime * 1e6), round(used.ru_stime * 1e6)
        self.usage.append((*times, used.ru_minflt, used.ru_nvcsw))
        self.moved.append(pages_moved() if rank == 0 else 0)


def pages_moved() -> int:
    """Pages this host's kernel has moved since it started; 0 where it does not count them."""
    with open("/proc/vmstat") as counters:
        return next((int(line.split()[1]) for line in counters if line.startswith("pgmigrate_success ")), 0)


def requests(count: int, steps: int, vocab: int) -> list[RequestSpec]:
    """Requests that all arrive at once and decode for `steps` steps."""
    prompts = np.random.default_rng(0).integers(0, vocab, (count, PROMPT))
    return [RequestSpec(i, 0, prompts[i], PROMPT, 1, steps + 1, False, i) for i in range(count)]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--lonely", action="store_true")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--sequences", type=int, default=4)
    parser.add_argument("--model", required=True, help="mini checkpoint: superpod make-checkpoint DIR")
    args = parser.parse_args()
    ranks = int(os.environ.get("OMPI_COMM_WORLD_SIZE", "1"))
    job = ReplayJob(
        model_dir=args.model,
        num_ranks=ranks,
        priced_as="deepseek-r1",
        profile="cloudmatrix384",
        batched_tokens=PROMPT * args.sequences,
        max_seqs=args.sequences,
        check_memory=False,
    )
    specs = requests(1 if args.lonely else ranks * args.sequences, args.steps, vocab=512)
    device = emulator.init(heap_bytes=1 << 16, staging_bytes=1 << 16, managed_bytes=48 << 20)
    watch = StepWatch()
    _, _, kv, run = build(common_parts(job, specs, device.profile), specs, device, watch, directory="")
    run()
    kv.check_integrity()
    last = np.array(watch.usage)[[1, args.steps]]  # as `steps` below
    pod = [device.exchange_tags(0, 0, int(used)) / (args.steps - 1) for used in last[1] - last[0]]
    if device.rank == 0:
        steps = np.diff(np.array(watch.walls))[1 : args.steps]  # without the prefill and the last
        moved = np.diff(np.array(watch.moved))[1 : args.steps]
        still = steps[moved < STILL_PAGES]
        print(
            json.dumps(
                {
                    "ranks": ranks,
                    "sequences": len(specs),
                    "kv_tokens": PROMPT,
                    "step_s_median": round(float(np.median(steps)), 4),
                    "step_s_min": round(float(steps.min()), 4),
                    "step_s_max": round(float(steps.max()), 4),
                    "step_s_median_unmoved": round(float(np.median(still)), 4) if still.size else None,
                    "cpu_s_per_step": round((pod[0] + pod[1]) / 1e6, 3),
                    "system_s_per_step": round(pod[1] / 1e6, 3),
                    "page_faults_per_step": round(pod[2]),
                    "sleeps_per_step": round(pod[3]),
                    "moved_pages": moved.tolist(),
                    "page_tokens": KV_BLOCK_TOKENS,
                }
            ),
            flush=True,
        )
    emulator.finalize()


if __name__ == "__main__":
    main()
