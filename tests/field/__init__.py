"""Public reports of what went wrong in pipelines of others, each with a healthy twin."""
