"""Pods are submitted: what their users wrote, what the webhook made of it, and what it refuses."""

from sandbox.admission import DeniedError, create_pod
from scripts.demonstration.cluster import webhook_promises
from scripts.demonstration.cluster.cast import BAD, HAMI, PLAIN
from scripts.demonstration.cluster.findings import Reviewed
from scripts.demonstration.cluster.play import Play


async def review(play: Play) -> None:
    play.show.act("Pods are submitted: what the webhook makes of them")
    plain = Reviewed("share", PLAIN, await play.submit(PLAIN))
    hami = Reviewed("hami", HAMI, await play.submit(HAMI))
    try:
        await create_pod(play.stage.server, play.stage.scheduler, BAD)
        refusal = ""
    except DeniedError as error:
        refusal = str(error)
    typo = Reviewed("typo", BAD, refusal=refusal)
    play.note(reviewed=(plain, hami, typo))
    play.show.reviews((plain, hami))
    play.show.say(f"[red]typo, which asks for 150 cores, was refused:[/] {refusal or 'no, it was let in'}")
    play.keep(
        webhook_promises.sent_to_our_scheduler((plain, hami)),
        webhook_promises.hami_is_translated(hami),
        webhook_promises.refused_in_words(typo, words="100 or 200"),
    )
