"""Why a plan is as it is: tables, devices, other algorithms."""
