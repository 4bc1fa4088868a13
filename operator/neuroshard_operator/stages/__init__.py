"""The stages of a job, one module each: pure functions from a look at the job to what is wanted next."""
