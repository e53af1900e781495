"""Bundled data: scenes of emoji drawings with captions whose truth is known.

Drawings by three designers and names and keywords from Unicode (``ATTRIBUTION.md`` lists authors and
licences) are arranged by seed into small scenes. One generator (:mod:`~nclib.data.emoji.generate`) makes them
on the reader's machine, for image-caption pairs (:mod:`~nclib.data.emoji.pairs`) and for category retrieval
(:mod:`~nclib.data.emoji.categories`); the cache folder keeps them.
"""
