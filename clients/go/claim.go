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
// It also returns when the lease that the answer grants is over: a lease counts from before the request.
func ask(action string, body fields) (int, fields, time.Time) {
	data, _ := json.Marshal(body) // the service refuses an empty body
	for pause := 100 * time.Millisecond; ; pause = min(2*pause, 5*time.Second) {
		sent, client := time.Now(), http.Client{Timeout: 30 * time.Second}
		response, err := client.Post("http://127.0.0.1:8767/v1/shop/"+action, "application/json", bytes.NewReader(data))
		if err == nil {
			status, decoder, answer := response.StatusCode, json.NewDecoder(response.Body), fields{}
			decoder.UseNumber() // a fence has more digits than a float64 is sure to keep
			err = decoder.Decode(&answer)
			response.Body.Close()
			if (err == nil || status == 413) && status < 500 && status != 408 && status != 429 {
				lease, _ := answer["lease"].(json.Number)
				seconds, _ := lease.Float64()
				return status, answer, sent.Add(time.Duration(seconds * float64(time.Second)))
			}
		}
		time.Sleep(pause)
	}
}

func main() {
	id := make([]byte, 16)
	rand.Read(id) // a new id for each claim
	claim := fields{"key": os.Args[1], "id": hex.EncodeToString(id)}
	status, answer, until := ask("claim", fields{"key": claim["key"], "id": claim["id"], "lease": 30, "wait": 20})
	if answer["outcome"] != "claimed" || time.Now().After(until) {
		fmt.Println(status, answer["result"])
		exit(answer)
	}
	claim["fence"] = answer["fence"]

	done := make(chan bool)
	stop := func() { // another client can take the key, so stop the work
		select {
		case <-done:
		default:
			os.Exit(1)
		}
	}
	over := time.AfterFunc(time.Until(until), stop)
	go func() { // renew the claim while the work goes on
		for {
			select {
			case <-done:
				return
			case <-time.After(10 * time.Second):
				status, _, until := ask("extend", fields{"key": claim["key"], "id": claim["id"], "fence": claim["fence"], "lease": 30})
				if status == 410 {
					stop()
				} else if status == 200 {
					over.Reset(time.Until(until))
				}
			}
		}
	}()
	result := fields{"receipt": 7} // the work
	close(done)

	ended := fields{"key": claim["key"], "id": claim["id"], "fence": claim["fence"], "result": result}
	status, answer, _ = ask("complete", ended)
	if status == 400 || status == 413 { // the work is done all the same
		delete(ended, "result")
		ended["no_result"] = "the service does not take it"
		status, answer, _ = ask("complete", ended)
	}
	fmt.Println(status, answer["outcome"])
	exit(answer)
}

// exit ends with status 0 only if the work is done and recorded.
func exit(answer fields) {
	if answer["outcome"] != "completed" {
		os.Exit(1)
	}
	os.Exit(0)
}
