"""What every model must keep to. Parametrised over the table of models, so that a new one gets these tests for free."""
