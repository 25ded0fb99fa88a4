"""A ledger in Amazon DynamoDB."""
