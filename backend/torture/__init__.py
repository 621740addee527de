"""Random schedules of faults, all of them judged."""
