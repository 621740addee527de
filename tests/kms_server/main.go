// AWS KMS for the tests: local-kms, which listens on all interfaces by itself, behind a listener on
// loopback. `kms FOLDER` keeps its keys in the folder and prints its address.
package main

import (
	"fmt"
	"log"
	"net"
	"net/http"
	"os"

	"github.com/nsmithuk/local-kms/src"
	"github.com/nsmithuk/local-kms/src/config"
	"github.com/nsmithuk/local-kms/src/data"
)

func main() {
	config.AWSAccountId, config.AWSRegion = "111122223333", "us-east-1"
	database := data.NewDatabase(os.Args[1])
	listening, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("http://%s\n", listening.Addr())
	log.Fatal(http.Serve(listening, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		src.HandleRequest(w, r, database)
	})))
}
