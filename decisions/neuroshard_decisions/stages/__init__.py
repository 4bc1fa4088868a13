"""The stages of a job, one module each: pure functions from a pass at the job to what is wanted next."""
