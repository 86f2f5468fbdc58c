"""Sub-document messages: lookups and mutations of paths inside a document.

Source of all: kv_engine docs/SubDocument.md, daemon/subdocument_validators.cc.
"""
