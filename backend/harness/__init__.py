"""What tests of other people's pipelines need: brokers, topics, programs and a verdict."""
