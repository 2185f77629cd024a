module technocore-rpc/bench/parley

go 1.26
