FROM python:3.11-slim-bookworm
RUN apt-get update && apt-get install -y --no-install-recommends openjdk-17-jre-headless && rm -rf /var/lib/apt/lists/*
RUN useradd --uid 1000 --create-home topicproof && mkdir -p /home/topicproof/data /storage /secrets/postgresql /secrets/spark && chown -R topicproof /home/topicproof/data /storage /secrets && chmod 700 /home/topicproof/data /secrets/spark
# Python searches no working folder, also where Spark starts it.
ENV TOPICPROOF_HOME=/home/topicproof/data PYTHONSAFEPATH=1
WORKDIR /opt/topicproof
COPY requirements.lock pyproject.toml ivy.xml jars.sha256 README.md LICENSE ./
RUN pip install --no-cache-dir --require-hashes -r requirements.lock
COPY app ./app
COPY backend ./backend
COPY validators ./validators
COPY topicproof ./topicproof
COPY .streamlit ./.streamlit
RUN pip install --no-cache-dir --no-deps -e . && python -P -m topicproof.backend.services.jars && chmod -R a+rX .
USER topicproof
EXPOSE 8501
# It listens on loopback, which nothing outside the container reaches: see docker-compose.yml.
CMD ["topicproof", "up", "--no-demo"]
