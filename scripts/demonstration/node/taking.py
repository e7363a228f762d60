"""Act 5: two pods on one GPU run a program that takes all it can get."""

from scripts.demonstration.node import greedy, promises, slice_promises
from scripts.demonstration.node.cast import GREEDY, Role
from scripts.demonstration.node.play import Play


async def greedy_pods(play: Play) -> None:
    play.show.act("Two pods on one GPU run a program that takes all it can get")
    pods = [await play.run(role) for role in GREEDY]
    play.keep(promises.share_one_gpu(pods))
    play.show.say(
        f"both are on GPU {', '.join(map(str, pods[0].gpus))}; the program is linked against libcuda.so.1 alone, "
        f"allocates until it is refused, and then keeps the GPU busy for {greedy.SECONDS:g} s\n"
    )
    asked = [_asked(play, role, pod.uid) for role, pod in zip(GREEDY, pods, strict=True)]
    play.slices = await greedy.run(play.stage, asked)
    play.show.slices(play.slices)
    play.keep(slice_promises.memory_ends_at_the_limit(play.slices), slice_promises.time_is_shared_as_asked(play.slices))


def _asked(play: Play, role: Role, uid: str) -> greedy.Asked:
    (ask,) = role.asks
    view = play.stage.kubelet.container_view(uid, ask.container)
    return greedy.Asked(role.name, view, ask.cores, ask.blocks)
