"""The durable index: a directory of immutable files and one manifest that names them.

    asked         store (Index) ─ query ─ filter, where · rows (arguments, checked) · encoder (the model)
    there         snapshot ─ segment ─ columns, keys · deletes, masks
    changed       writer ─ lock · build, creation, staging (a new one at one stroke) · manifest (the commit)
    on disk       format (sections, a checksum over every byte) · mapping (read) · disk (written, synced)
    damaged       verify · salvage ─ wreck, rebuild

`backends` chooses who scans for a device.
"""
