package main

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"time"
)

type fields map[string]any

// ask sends a request until it is answered. The same request gets the same answer.
func ask(action string, body fields) (int, fields) {
	data, _ := json.Marshal(body)
	for pause := 100 * time.Millisecond; ; pause = min(2*pause, 5*time.Second) {
		client := http.Client{Timeout: 30 * time.Second}
		response, err := client.Post("http://127.0.0.1:8767/v1/shop/"+action, "application/json", bytes.NewReader(data))
		if err == nil {
			decoder, answer := json.NewDecoder(response.Body), fields{}
			decoder.UseNumber() // a fence has more digits than a float64 is sure to keep
			err = decoder.Decode(&answer)
			response.Body.Close()
			if err == nil && response.StatusCode < 500 && response.StatusCode != 429 {
				return response.StatusCode, answer
			}
		}
		time.Sleep(pause)
	}
}

func main() {
	id := make([]byte, 16)
	rand.Read(id) // a new id for each claim
	claim := fields{"key": os.Args[1], "id": hex.EncodeToString(id)}
	status, answer := ask("claim", fields{"key": claim["key"], "id": claim["id"], "lease": 30, "wait": 20})
	if status != 201 {
		fmt.Println(status, answer["result"])
		return
	}
	claim["fence"] = answer["fence"]

	done := make(chan bool)
	go func() { // renew the claim while the work goes on
		for {
			select {
			case <-done:
				return
			case <-time.After(10 * time.Second):
				if status, _ := ask("extend", fields{"key": claim["key"], "id": claim["id"], "fence": claim["fence"], "lease": 30}); status == 410 {
					os.Exit(1) // the claim is lost, so stop the work
				}
			}
		}
	}()
	result := fields{"receipt": 7} // the work
	close(done)

	claim["result"] = result
	status, answer = ask("complete", claim)
	fmt.Println(status, answer["outcome"])
}
