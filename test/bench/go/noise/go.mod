module technocore-rpc/bench/noise

go 1.24

require github.com/flynn/noise v1.1.0
