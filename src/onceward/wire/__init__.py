"""Our own wire to AWS: signs calls, sends them over sockets and reads the answers, sync and async. Knows no store or queue."""
