"""How a new policy earns its traffic: plan, statistics that may be looked at any time, decision."""
