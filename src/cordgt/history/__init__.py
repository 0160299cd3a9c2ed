"""What a query may know: every result is a pure function of ``cut``, the number of visible events.

Start with `queries` (Queries, History) and `index` (TemporalIndex). `context`, `recent` and `walks` sample history;
`distance`, `pair_features` and `cooccurrence` measure it; `rng` draws all random numbers.
"""
