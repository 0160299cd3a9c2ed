"""The paper's tables and figures. `catalogue` lists the experiments; `cells` defines the trainings they are made of."""
