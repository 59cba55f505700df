"""How many of what a group asks these devices could give: now, ever, and if they were cut anew.

For whoever asks why nothing was chosen; the index answers the same question for grants.
"""

from __future__ import annotations

from collections.abc import Sequence

from quintal_placer.engine.asks import Group, Option
from quintal_placer.engine.devices import Device, in_whole_sets


def now(group: Group | Option, devices: Sequence[Device]) -> int:
    """So many are free."""
    if group.partition:
        return sum(len(device.free_partitions(group.partition)) for device in devices)
    if group.share is not None:
        needs = ((group.share.of(device.memory_bytes), device) for device in devices)
        return sum(parts is not None and parts <= device.free_parts for parts, device in needs)
    return len(in_whole_sets([device for device in devices if device.whole]))


def ever(group: Group | Option, devices: Sequence[Device]) -> int:
    """So many, as the devices are cut now, if nobody held anything."""
    if group.partition:
        return sum(
            partition.profile == group.partition and partition.parts > 0 and not partition.missing
            for device in devices
            for partition in (device.partitions or {}).values()
        )
    uncut = [device for device in devices if not device.partitions]
    if group.share is not None:
        return sum(group.share.of(device.memory_bytes) is not None for device in uncut)
    return len(in_whole_sets(uncut))


def cut_anew(group: Group | Option, devices: Sequence[Device], most: int) -> int:
    """So many more, were every device that nobody holds anything of cut as the group needs it.

    `most` is how many partitions of the profile one device can be cut into.
    """
    free = [device for device in devices if not device.holders]
    if group.partition:
        return sum(max(0, most - len(device.free_partitions(group.partition))) for device in free)
    return sum(bool(device.partitions) for device in free)
