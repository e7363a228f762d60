"""The settings as extender and webhook want them; neither knows where a setting comes from."""

from deviceplugin.cluster.extender.reservations import Patience
from deviceplugin.cluster.extender.settings import Settings
from deviceplugin.cluster.webhook.settings import HamiSettings, WebhookSettings, parse_share_memory
from deviceplugin.config.scheduler import NodeChoice, SchedulerSettings


def extender_settings(settings: SchedulerSettings) -> Settings:
    placement = settings.placement
    return Settings(
        node_policy=placement.node_policy,
        gpu_policy=placement.gpu_policy,
        one_node=placement.node_choice is NodeChoice.EXTENDER,
        patience=Patience(reservation=placement.reservation_time, gang=placement.gang_reservation_time),
        names=settings.names,
    )


def webhook_settings(settings: SchedulerSettings) -> WebhookSettings:
    webhook = settings.webhook
    return WebhookSettings(
        names=settings.names,
        scheduler_name=webhook.scheduler_name,
        default_cores=webhook.default_cores,
        share_memory=parse_share_memory(webhook.share_memory),
        hide_gpus=webhook.hide_gpus,
        runtime_class=webhook.runtime_class,
        hami=HamiSettings() if webhook.translate_hami else None,
        namespaces=frozenset(webhook.namespaces),
        ignored_namespaces=frozenset(webhook.ignored_namespaces),
    )
