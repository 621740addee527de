"""Random schedules of faults, judged all along."""
