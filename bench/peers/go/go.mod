module peer-go

go 1.24
