"""The live service: events in, answers out."""
