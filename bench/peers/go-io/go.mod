module peer-io-go

go 1.24
