"""The operator's settings as the webhook wants them.

In: the branch of the settings tree, and the names of our resources. Out: `WebhookSettings`. One way only, so that what
`config` calls a flag never reaches the rest of the webhook.
"""

from deviceplugin.cluster.webhook.settings import HamiSettings, WebhookSettings
from deviceplugin.config import webhook as config
from deviceplugin.model.hami_scope import HamiScope
from deviceplugin.model.units import ResourceNames


def configured(chosen: config.WebhookSettings, names: ResourceNames) -> WebhookSettings:
    return WebhookSettings(
        names=names,
        scheduler_name=chosen.scheduler_name,
        default_cores=chosen.default_cores,
        share_memory=chosen.share_memory,
        hide_gpus=chosen.hide_gpus,
        library_path=chosen.prefix_library_path,
        runtime_class=chosen.runtime_class,
        hami=None if chosen.translate_hami is HamiScope.OFF else _hami(chosen),
        namespaces=chosen.namespaces,
        ignored_namespaces=chosen.ignored_namespaces,
    )


def _hami(chosen: config.WebhookSettings) -> HamiSettings:
    return HamiSettings(
        count=chosen.hami_count,
        memory=chosen.hami_memory,
        memory_percentage=chosen.hami_percentage,
        cores=chosen.hami_cores,
        priority=chosen.hami_priority,
        every=chosen.translate_hami is HamiScope.ALL,
        unlimited_cores=chosen.hami_unlimited_cores,
    )
