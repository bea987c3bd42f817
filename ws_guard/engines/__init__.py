"""What is known of vLLM and SGLang: workspace sites as data, launch commands, the plan of both."""
