"""Farthest point sampling, whose programs synchronize with each other, on a GPU that is busy or full.

    python -m reliability.gpu.contention --rounds 200 --out reliability/results/gpu_contention.json

Each scene runs in a separate process with a time limit, since a kernel that waits forever would also block the process
that launched it. Every result is compared with that of an idle GPU.
"""

import argparse
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import torch
import triton
import triton.language as tl

import pointgrad
from pointgrad.ops.sampling import kernels

from ..arguments import at_least, out_file

LIMIT_S = 120


@triton.jit
def _hold(out_ptr, turns, BLOCK: tl.constexpr):
    """Keep a multiprocessor busy, with many warps and registers."""
    lane = tl.arange(0, BLOCK)
    value = lane.to(tl.float32) + tl.program_id(0)
    for _ in range(turns):
        value = tl.sin(value) + 0.5
    tl.store(out_ptr + tl.program_id(0) * BLOCK + lane, value)


def hold(turns: int, programs: int = 132 * 64) -> None:
    """Launch more programs on the current stream than all multiprocessors can run at a time."""
    out = torch.empty(programs * 1024, device="cuda")
    _hold[(programs,)](out, turns, BLOCK=1024, num_warps=32)


def sample(points: torch.Tensor) -> torch.Tensor:
    return pointgrad.farthest_point_sampling(points, 300)


def uses_several_programs(points: torch.Tensor) -> bool:
    """Whether sampling of these points is shared by several programs."""
    processors = torch.cuda.get_device_properties(0).multi_processor_count
    return kernels.plan(points.shape[0], points.shape[1], torch.float32, processors).programs > 1


def beside_products(rounds: int) -> int:
    """While matrix products run on another stream."""
    points = torch.rand(1, 100_000, 3, device="cuda")
    expected, other = sample(points), torch.cuda.Stream()
    a = torch.randn(4096, 4096, device="cuda")
    torch.cuda.synchronize()
    for _ in range(rounds):
        with torch.cuda.stream(other):
            a = torch.tanh(a @ a)
        assert torch.equal(sample(points), expected)
    return rounds


def behind_full_multiprocessors(rounds: int) -> int:
    """While programs of another stream occupy all multiprocessors, with more programs queued."""
    points = torch.rand(1, 400_000, 3, device="cuda")
    expected, other = sample(points), torch.cuda.Stream()
    hold(10)
    torch.cuda.synchronize()
    for turn in range(rounds):
        with torch.cuda.stream(other):
            hold(2000 + 100 * (turn % 7))
        assert torch.equal(sample(points), expected)
        other.synchronize()
    return rounds


def among_many_streams(rounds: int) -> int:
    """Eight threads sample on eight streams: more cooperative launches than fit on the GPU at a time."""
    clouds = [torch.rand(1, 30_000 * (1 + n % 4), 3, device="cuda") for n in range(8)]
    expected = [sample(points) for points in clouds]
    torch.cuda.synchronize()
    wrong: list[int] = []
    each = -(-rounds // len(clouds))

    def work(number: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            wrong.extend(number for _ in range(each) if not torch.equal(sample(clouds[number]), expected[number]))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, wrong
    return each * len(clouds)


def replayed_on_two_streams(rounds: int) -> int:
    """Two captured CUDA graphs are replayed at the same time."""
    clouds = [torch.rand(2, 50_000, 3, device="cuda") for _ in range(2)]
    expected = [sample(points) for points in clouds]
    graphs, results = [torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()], []
    for graph, points in zip(graphs, clouds, strict=True):
        with torch.cuda.graph(graph):
            results.append(sample(points))
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    for _ in range(rounds):
        for graph, stream, result in zip(graphs, streams, results, strict=True):
            with torch.cuda.stream(stream):
                result.zero_()
                graph.replay()
        torch.cuda.synchronize()
        assert all(torch.equal(result, wanted) for result, wanted in zip(results, expected, strict=True))
    return rounds


def with_a_grid_that_does_not_fit(rounds: int) -> int:
    """More programs than can be resident: the driver rejects the launch, and one program per cloud does the work."""
    points = torch.rand(1, 200_000, 3, device="cuda")
    expected = sample(points)
    chosen = kernels.plan
    launched: list[int] = []
    launch = kernels._launch

    def watch(plan: kernels.Plan, *arguments: object) -> None:
        launched.append(plan.programs)
        launch(plan, *arguments)  # type: ignore[arg-type]

    kernels._launch = watch
    kernels.plan = lambda *_: kernels.Plan(8192, 2048, 4)
    try:
        for _ in range(min(rounds, 5)):
            launched.clear()
            assert torch.equal(sample(points), expected)
            assert launched == [8192, 1], launched
    finally:
        kernels.plan, kernels._launch = chosen, launch
    assert torch.equal(sample(points), expected)
    return min(rounds, 5)


def with_full_memory(rounds: int) -> int:
    """Without free memory sampling raises torch's error, and it returns correct results once memory is free again."""
    points = torch.rand(1, 400_000, 3, device="cuda")
    expected = sample(points)
    torch.cuda.synchronize()
    refused = 0
    for _ in range(min(rounds, 5)):
        torch.cuda.empty_cache()
        held, size = [], 2**37
        while size >= 512:
            try:
                held.append(torch.empty(size, dtype=torch.int8, device="cuda"))
            except torch.OutOfMemoryError:  # noqa: PERF203
                size //= 2
        try:
            sample(points)
        except torch.OutOfMemoryError:
            refused += 1
        del held
        assert torch.equal(sample(points), expected)
    assert refused == min(rounds, 5), refused
    return refused


def beside_another_process(rounds: int) -> int:
    """While another process samples on the same GPU."""
    command = [
        sys.executable,
        "-m",
        "reliability.gpu.contention",
        "--scene",
        "beside_products",
        "--rounds",
        str(rounds),
    ]
    with subprocess.Popen(command) as other:
        done = beside_products(rounds)
        assert other.wait() == 0
    return 2 * done


SCENES: dict[str, Callable[[int], int]] = {
    scene.__name__: scene
    for scene in (
        beside_products,
        behind_full_multiprocessors,
        among_many_streams,
        replayed_on_two_streams,
        with_a_grid_that_does_not_fit,
        with_full_memory,
        beside_another_process,
    )
}


def watched(scene: str, rounds: int) -> dict[str, object]:
    """Run a scene in a new process, and return its outcome."""
    command = [sys.executable, "-m", "reliability.gpu.contention", "--scene", scene, "--rounds", str(rounds)]
    begin = time.monotonic()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        return {"scene": scene, "state": f"hung for {LIMIT_S} s", "calls": 0, "seconds": LIMIT_S}
    lines = (done.stdout + done.stderr).strip().splitlines()
    state = "right" if done.returncode == 0 else f"exit status {done.returncode}: {' | '.join(lines[-3:])}"
    calls = int(done.stdout.split()[-1]) if done.returncode == 0 else 0
    return {"scene": scene, "state": state, "calls": calls, "seconds": round(time.monotonic() - begin, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=at_least(1), default=200, help="rounds per scene")
    parser.add_argument("--scene", choices=SCENES, help="run only this scene, in this process")
    parser.add_argument("--out", type=out_file, help="JSON file for the results")
    arguments = parser.parse_args()
    if arguments.scene:
        torch.manual_seed(0)
        assert uses_several_programs(torch.rand(1, 100_000, 3)), (
            "on this GPU sampling uses one program: nothing to test"
        )
        print(SCENES[arguments.scene](arguments.rounds))
        return
    from pointgrad.bench import write
    from pointgrad.bench.machine import machine

    scenes = []
    for scene in SCENES:
        scenes.append(watched(scene, arguments.rounds))
        print(scenes[-1], flush=True)
    if arguments.out:
        write({"machine": machine("cuda"), "watchdog_s": LIMIT_S, "scenes": scenes}, arguments.out)
    if any(scene["state"] != "right" for scene in scenes):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
