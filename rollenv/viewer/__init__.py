"""What training runs and evaluations left, as pages to look at: `rollenv view` and `rollenv report`."""
