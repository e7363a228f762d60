"""What is promised of the webhook: trusted, translating, and refusing in words.

In: findings. Out: one `Promise` for each, held or not, with what was found. Pure.
"""

from collections.abc import Iterable

from scripts.demonstration.cluster.cast import CORE, MEMORY
from scripts.demonstration.cluster.findings import Reviewed
from scripts.demonstration.document import Promise
from scripts.demonstration.promised import promised

SCHEDULER = "vcuda-scheduler"


def is_trusted(authority: str, bundle: str) -> Promise:
    """The authority in the Secret, which kube-scheduler reads, is in the webhook's caBundle."""
    wrong = [] if authority and authority.strip() in bundle else ["the webhook's caBundle does not have it"]
    return promised("the scheduler's own authority is trusted everywhere", wrong, "Secret and caBundle agree")


def sent_to_our_scheduler(reviewed: Iterable[Reviewed]) -> Promise:
    names = {each.pod: each.stored.get("spec", {}).get("schedulerName") for each in reviewed}
    wrong = [f"{pod} is for {name}" for pod, name in names.items() if name != SCHEDULER]
    return promised("the webhook sends GPU pods to our scheduler", wrong, " and ".join(names))


def hami_is_translated(reviewed: Reviewed) -> Promise:
    """Two GPUs with 30 cores and 4 GiB each, in our words, and nothing left of HAMi's."""
    wanted = {CORE: "60", MEMORY: "32"}
    wrong = []
    for part in ("limits", "requests"):
        (container,) = reviewed.stored["spec"]["containers"]
        found = {key: str(count) for key, count in container["resources"].get(part, {}).items()}
        if found != wanted:
            wrong.append(f"its {part} are {found}, not {wanted}")
    parts = (reviewed.stored["metadata"].get("annotations") or {}).get("tencent.com/vcuda-gpus")
    if parts != "main=2":
        wrong.append(f"tencent.com/vcuda-gpus is {parts!r}, not 'main=2'")
    return promised("a pod written for HAMi needs no change", wrong, "2 GPUs with 30 cores and 4 GiB each")


def refused_in_words(reviewed: Reviewed, *, words: str) -> Promise:
    sentence = reviewed.refusal
    wrong = [] if words in sentence and "\n" not in sentence else [sentence or f"{reviewed.pod} was let in"]
    return promised("what can never run is refused at once, with what to write", wrong, reviewed.pod)
